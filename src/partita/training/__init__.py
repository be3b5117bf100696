"""Rounds in order: pretrain, personalize, fine-tune, each round committed."""
