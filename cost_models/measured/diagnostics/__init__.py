"""Diagnostics: whether FBGEMM's fused operator works on this machine, and what to do if it does not."""
