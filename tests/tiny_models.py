"""Tiny Hugging Face models with random weights, in folders as `save_pretrained` writes them."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

WORDS = (
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "the",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "a",
    "mat",
    "far",
    "away",
    "now",
    "here",
)
TEXT = {"vocab_size": 16, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def write_llama(folder: Path, dim: int = 8, dtype: torch.dtype = torch.float32) -> Path:
    """Write a Llama of two blocks with tied embeddings, with values of a type."""
    sizes = {"hidden_size": dim, "intermediate_size": 2 * dim, "num_hidden_layers": 2}
    sizes["num_attention_heads"] = 2
    config = LlamaConfig(
        **TEXT, **sizes, num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=True
    )
    return _write(LlamaForCausalLM, config, folder, dtype)


def write_gpt2(folder: Path) -> Path:
    """Write a GPT-2 of two blocks, whose layers are `Conv1D`."""
    config = GPT2Config(**TEXT, n_embd=8, n_layer=2, n_head=2, n_positions=32)
    return _write(GPT2LMHeadModel, config, folder)


def write_bert(folder: Path) -> Path:
    """Write a BERT of two blocks, with a classifier of two classes."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**TEXT, **sizes, max_position_embeddings=32)
    return _write(BertForSequenceClassification, config, folder)


def write_roberta(folder: Path) -> Path:
    """Write a RoBERTa of two blocks, whose classifier is a module of two layers."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = RobertaConfig(**TEXT, **sizes, max_position_embeddings=32)
    return _write(RobertaForSequenceClassification, config, folder)


def write_distilbert(folder: Path) -> Path:
    """Write a DistilBERT of two blocks, with two modules beside its backbone."""
    sizes = {"dim": 8, "hidden_dim": 16, "n_layers": 2, "n_heads": 2}
    config = DistilBertConfig(vocab_size=16, pad_token_id=0, **sizes, max_position_embeddings=32)
    return _write(DistilBertForSequenceClassification, config, folder)


def write_vit(folder: Path) -> Path:
    """Write a ViT of two blocks for color images of 8 x 8."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=5)
    return _write(ViTForImageClassification, config, folder)


def _write(kind: type, config: object, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.to(dtype).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)
