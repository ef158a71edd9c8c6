"""The planners of TorchRec, HugeCTR and RecShard."""
