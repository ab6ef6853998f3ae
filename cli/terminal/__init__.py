"""What commands share: options, questions, output, interruption, failure."""
