"""What breaks, for other programs: findings of any command, and one module for each format."""
