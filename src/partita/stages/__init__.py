"""Which rounds, in which order: pretrain, personalise, finetune, each round committed."""
