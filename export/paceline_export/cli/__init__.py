"""The subcommands that need the export package."""
