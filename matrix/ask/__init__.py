"""The wing that answers: what is known of a stack, from files, texts and facts alone. It starts no run."""
