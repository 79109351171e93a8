"""What runs the graphs of a bundle."""
