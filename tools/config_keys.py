"""Which keys of a config.json no memory rule reads: left out of the catalogue and the defaults.

A deny list, so that a key nobody has thought of stays.
"""

from __future__ import annotations

import re

NAMES = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _from_model_config _name_or_path activation_dropout
    adapter_layer_norm_eps adaptor_layer_norm_eps apply_spec_augment assay attention_dropout
    attention_probs_dropout_prob attn_dropout_prob attn_implementation auto_map aux_loss_alpha bad_words_ids
    base_model_ep_plan base_model_pp_plan base_model_tp_plan batch_vision_input begin_suppress_tokens
    block_norm_eps cache_implementation chunk_size_feed_forward classifier_dropout
    cross_attention_hidden_size damp_percent decoder_layerdrop diversity_penalty do_sample dropout
    early_stopping emb_dropout_prob emb_pdrop embd_pdrop embedding_dropout encoder_layerdrop
    encoder_no_repeat_ngram_size expert_dropout exponential_decay_length_penalty faster_token_stride
    finetuning_task force_sample forced_decoder_ids fuse_max_seq_len gradient_checkpointing
    gradient_clipping hc_eps hidden_dropout hidden_dropout_prob id2label ignore_index
    ignore_keys_at_rope_validation image_placeholder init_method init_std initializer_factor
    initializer_range input_jitter_noise is_llama_config keys_to_ignore_at_inference label2id label_names
    layer_norm_eps layer_norm_epsilon layerdrop layernorm_epsilon length_penalty max_length
    median_filter_width min_length mixer_rms_eps mm_projector_lr mm_vision_tower_lr model_args
    model_name_or_path moe_jitter_eps moe_loss_weight name_or_path no_repeat_ngram_size norm_eps
    norm_epsilon norm_topk_prob num_beam_groups num_beams num_logits_to_keep num_return_sequences onnx_safe
    output_attentions output_hidden_states output_past output_router_logits output_scores prefix
    problem_type projector_dropout projector_ln_eps pruned_heads remove_invalid_values repetition_penalty
    rescale_prenorm_residual resid_pdrop residual_dropout return_dict return_dict_in_generate rms_norm_eps
    router_aux_loss_coef router_jitter_noise selective_checkpoint_enabled sequence_parallel_enabled
    special_tokens sscp_conv_group_norm_eps suppress_tokens task_specific_params temperature tf_legacy_loss
    time_step_floor time_step_init_scheme time_step_limit time_step_max time_step_min time_step_scale
    tokenizer_class tokenizer_model_max_length tokenizer_padding_side tokenizer_type top_k_sampling top_p
    torchscript transformers.js_config transformers_version transformers_weights typical_p use_bfloat16
    use_cache version_info video_placeholder
    """.split()  # noqa: SIM905
)

PATTERN = re.compile(
    r"(_token(_id|_index)?s?|_token_ids|im_(end|start|patch|newline)_id|^pad_id|mask_(feature|time)_\w+)$"
    r"|_dropout$|_pdrop$"
)

KEEP = frozenset(
    {"num_experts_per_token", "fps_per_token", "audio_soft_tokens_per_image", "tokens_per_second"}
)


def irrelevant(key: str) -> bool:
    """True for token ids, generation settings, initialisers, epsilons and paths."""
    return key not in KEEP and (key in NAMES or PATTERN.search(key) is not None)
