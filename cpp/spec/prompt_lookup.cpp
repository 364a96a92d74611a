// Placeholder so that the library has a source; replaced by the prompt-lookup drafter.
