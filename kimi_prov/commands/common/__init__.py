"""Code that several commands share: runs of playbooks, their reports, types of options."""
