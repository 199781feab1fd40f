"""The writing assistant's page: a web application for one machine, its sessions in one file."""
