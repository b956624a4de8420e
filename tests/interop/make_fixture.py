"""Makes a parity fixture with Hugging Face transformers (needs torch and transformers >= 5): a tiny random model, its
logits, losses, every gradient and a 20-step AdamW curve, in fp32 on the CPU with eager attention.

    python3 make_fixture.py OUT_DIR [NAME...]

Then: build/tests/hf_parity OUT_DIR/*/
"""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

LLAMA = dict(rms_norm_eps=1e-5, max_position_embeddings=256)
# The corners: heads that do not divide, one KV head, sequences beyond a power of two, dense and sparse layers mixed.
CASES = {
    "nine-heads-hd56": (LlamaForCausalLM, LlamaConfig(vocab_size=307, hidden_size=72, intermediate_size=100, num_hidden_layers=2,
                        num_attention_heads=9, num_key_value_heads=1, head_dim=56, tie_word_embeddings=True, **LLAMA), 2, 65),
    "hd8-long": (LlamaForCausalLM, LlamaConfig(vocab_size=1009, hidden_size=40, intermediate_size=88, num_hidden_layers=3,
                 num_attention_heads=5, num_key_value_heads=5, head_dim=8, tie_word_embeddings=False, **LLAMA), 1, 129),
    "qwen3-hd80": (Qwen3ForCausalLM, Qwen3Config(vocab_size=511, hidden_size=48, intermediate_size=72, num_hidden_layers=2,
                   num_attention_heads=6, num_key_value_heads=2, head_dim=80, max_position_embeddings=256), 3, 33),
    "moe-mixed": (Qwen3MoeForCausalLM, Qwen3MoeConfig(vocab_size=331, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=24, moe_intermediate_size=40, num_experts=6,
                  num_experts_per_tok=3, decoder_sparse_step=2, norm_topk_prob=False, output_router_logits=True,
                  router_aux_loss_coef=0.02, max_position_embeddings=256), 2, 65),
    "moe-mlp-only": (Qwen3MoeForCausalLM, Qwen3MoeConfig(vocab_size=263, hidden_size=56, intermediate_size=64,
                     num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=16, moe_intermediate_size=24,
                     num_experts=16, num_experts_per_tok=4, mlp_only_layers=[0], norm_topk_prob=True,
                     output_router_logits=True, router_aux_loss_coef=0.01, max_position_embeddings=256), 2, 49),
}


def make(out, name):
    cls, config, batch, seq = CASES[name]
    torch.manual_seed(sum(map(ord, name)))
    config._attn_implementation = "eager"
    config.use_cache = False
    model = cls(config).float()
    with torch.no_grad():  # norms away from 1, so that their gradients and uses are really tested
        for n, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
            else:
                p.mul_(2.0)
    path = os.path.join(out, name)
    model.save_pretrained(path)
    V = config.vocab_size
    ids = torch.randint(0, V, (batch, seq))
    targets = torch.randint(0, V, (batch, seq))
    train = torch.randint(0, V, (2, batch, seq + 1))
    moe = hasattr(config, "router_aux_loss_coef") and cls is Qwen3MoeForCausalLM

    def losses(x, y):
        o = model(input_ids=x, output_router_logits=True) if moe else model(input_ids=x)
        ce = torch.nn.functional.cross_entropy(o.logits.reshape(-1, V), y.reshape(-1))
        if not moe:
            return o.logits, ce, None, ce
        aux = o.aux_loss
        if aux is None:
            from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func
            aux = load_balancing_loss_func(o.router_logits, config.num_experts, config.num_experts_per_tok)
        return o.logits, ce, aux, ce + config.router_aux_loss_coef * aux

    logits, ce, aux, total = losses(ids, targets)
    total.backward()
    ref = {"input_ids": ids.int(), "target_ids": targets.int(), "train_ids": train.int(), "logits": logits.detach(),
           "loss_ce": ce.detach().reshape(1), "loss_total": total.detach().reshape(1)}
    if aux is not None:
        ref["loss_aux"] = aux.detach().reshape(1)
    for n, p in model.named_parameters():
        ref["grad." + n] = p.grad.clone()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    flat = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}], lr=2e-3,
                            betas=(0.9, 0.95), eps=1e-8)
    curve, norms = [], []
    for step in range(20):
        opt.zero_grad()
        b = train[step % 2]
        _, ce, _, total = losses(b[:, :-1], b[:, 1:])
        total.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        opt.step()
        curve.append(ce.item())
    ref["curve_loss_ce"], ref["curve_grad_norm"] = torch.tensor(curve), torch.tensor(norms)
    save_file({k: v.clone().contiguous() for k, v in ref.items()}, os.path.join(path, "reference.safetensors"))
    print(name, "loss", curve[0], "->", curve[-1])


if __name__ == "__main__":
    for name in sys.argv[2:] or CASES:
        make(sys.argv[1], name)
