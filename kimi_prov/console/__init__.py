"""Progress and summaries that a command prints."""
