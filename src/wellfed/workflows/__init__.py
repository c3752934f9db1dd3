"""What a person asks for: one file each, the only place where judgement meets edges."""
