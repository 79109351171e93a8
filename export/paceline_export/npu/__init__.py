"""What can be said about graphs for accelerators of phones, without such a phone."""
