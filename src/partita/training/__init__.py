"""Rounds in order: pretrain, personalize, finetune, each round committed."""
