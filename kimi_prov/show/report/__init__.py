"""Check and bench documents as reports: Markdown, HTML, text, a bill of materials."""
