// Learning rate against batch size, warm-up and decay.
#pragma once

double plan_lr_linear(double lr, double batch_from, double batch_to);
double plan_lr_sqrt(double lr, double batch_from, double batch_to);
double plan_warmup_steps(double batch_from, double batch_to); // 1000 steps per factor of batch size
// Half a cosine from lr_max at step 0 to lr_min at step total, lr_min afterwards.
double plan_lr_cosine(double step, double total, double lr_max, double lr_min);

double plan_perplexity(double loss);    // of a loss in nats
double plan_initial_loss(double vocab); // of a model that knows nothing
