"""What every room uses: errors, checks of arguments, text, files, jobs, and the computer."""
