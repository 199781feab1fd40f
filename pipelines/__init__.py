"""Monitor-control systems, one file each; their prompts are text files."""
