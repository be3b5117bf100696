"""Which rounds, in which order: pretrain, personalize, finetune, each round committed."""
