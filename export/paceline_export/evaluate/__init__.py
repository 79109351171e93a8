"""How many drafts of a pair are accepted, by replay of its rounds: on checkpoints, or on a bundle's own graphs."""
