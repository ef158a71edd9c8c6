"""Files: JSON, arrays in safetensors, and Markdown. Writes are atomic, reads are checked, and nothing is unpickled."""
