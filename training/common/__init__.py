"""What every training uses: roles, calibration, trees, graphs, thresholds, the checkpoint that it writes."""
