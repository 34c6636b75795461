"""What several commands share: running a playbook, reading its reports, types of options."""
