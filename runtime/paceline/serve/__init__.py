"""An HTTP server of one model, in the form of OpenAI's chat completions and completions."""
