"""metaprobe: how good is a language model's answer, from signals the model already gives off."""
