"""What every check is made of: declaration, vocabulary, bounded reads, commands."""
