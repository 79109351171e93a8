"""The `paceline` command. Subcommands register in the entry-point group `paceline.commands`."""
