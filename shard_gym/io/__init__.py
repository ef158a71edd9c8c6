"""Files: JSON, arrays in safetensors, and Markdown. Written atomically, checked when read; nothing is unpickled."""
