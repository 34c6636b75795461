"""How ufw and firewalld are switched on, off and anew on a lab host."""

from __future__ import annotations

# Both drop then what they are not told to let in.
ENABLED = {
    "ufw": "ufw allow 22/tcp && ufw --force enable",
    "firewalld": "systemctl enable --now firewalld && firewall-cmd --state",
}
DISABLED = {"ufw": "ufw disable", "firewalld": "systemctl disable --now firewalld"}
RELOADED = {"ufw": "ufw reload", "firewalld": "firewall-cmd --reload"}
