"""From sequences to trained weights: the stages pretrain, sft, reference and dpo, the training loop and its parts."""
