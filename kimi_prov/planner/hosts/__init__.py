"""What several hosts decide together: groups, neighbours, batches, the site's network."""
