"""What no option says, of variants of methods."""
