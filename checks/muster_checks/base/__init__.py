"""What every check uses: declaration, vocabulary, bounded reads, commands."""
