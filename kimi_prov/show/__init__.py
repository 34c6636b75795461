"""What a command shows: text for a terminal, live screens, reports."""
