"""Trains a drafter on what a frozen target says; needs paceline[torch]."""
