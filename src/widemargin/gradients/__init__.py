"""Input gradients of logits, and penalties on them: the three ways to compute them, and when each is used.

Notation. z (B, K) are the logits of images x, J_i = dz_i/dx_i (K, D) the input Jacobian of sample i, c_m vectors at its
logits. What everything here computes, per sample and in evaluation mode, is products c J: the gradient of the logit
c . z. A margin takes them as they are; a penalty is P_i = sum_m ||c_im J_i||^2, or the same with another norm
(``norms``), and training needs dP_i/d(parameters), a second derivative of the network. Only the vectors differ: every
class's unit vector (exact EMR), softmax(z / t) (approximate EMR), random ones (stochastic EMR), p - onehot(y) (the
cross-entropy's input gradient).

In evaluation mode samples do not see each other, so one backward pass from sum_i c_i . z_i gives every sample its own
product. A model whose batch norm couples the samples has no per-sample input gradient and is refused.

**Measure** (``jacobian``): margins, ``regularizer.value``. One forward pass with its graph, then one backward pass per
vector, batched over vectors. No graph of the result. Takes any model that autograd takes; works under ``no_grad`` and
``inference_mode``.

**Fast** (``sweeps``): a penalty's first choice. dP = sum_m d<c_m, J v_m> at v = dP/d(c J) held fixed (2 c J for squared
L2), whatever the model and the norm, so no graph of a graph is needed. The model's own forward runs once and is
recorded as a tape of layers; an adjoint sweep (logits to images) gives c J and the value; when gradients are asked for,
a tangent sweep (images to logits) of v gives J v, with one ordinary weight-gradient kernel per layer. Where an operator
is curved (a smooth activation, a product), or c is not held constant, one ordinary reverse pass adds what reaches the
weights through the activations.
Piecewise linear networks cost four forwards' worth of work per vector; memory is masks and adjoints. Nothing is
guessed: what the tape cannot account for (a custom autograd function, an unknown operator, a weight computed from
parameters, a hook) raises ``NotSweepable`` before anything was computed, and:

**Any model** (``double_backward``): the forward pass runs with its graph, the input gradient with ``create_graph``, and
autograd differentiates once more. While the model's own forward runs, operators whose stock second derivative is
missing, wasteful or silently wrong are replaced; nothing is compiled, checkpointed or fused. It costs four forwards'
worth of work per vector for fully connected networks, six for convolutional ones (torch's second derivative of a
convolution computes more than is asked for), and memory for a graph of second order.

``penalties`` chooses: sweeps, else double backward, with the same refusals, chunks of vectors and promises:

- Both are exact; tests hold them against each other and against the slow Jacobian.
- The model runs in evaluation mode; its flags, statistics and ``.grad`` are left as they were.
- The value and its gradient belong to the weights and statistics at the time of the call. A parameter changed between
  call and ``backward()`` is an error, a statistic changed meanwhile does not matter.
- A penalty that would train nothing is refused, and so is ``backward(create_graph=True)`` through one.
- Memory is that of ``at_once`` vectors; beyond, chunks are computed a second time in the backward pass.
"""
