"""Plans and check documents as text, Markdown and HTML."""
