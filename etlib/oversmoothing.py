"""The digits experiment of chapter 7: train one classifier, then measure it.

Equal budget: every model sees the same number of batches of the same size, and the parameters
after the last step are the ones measured. Learning rates were chosen on the validation images;
the test images are for reporting.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, PyTree

from etlib import dynamics, landscape
from etlib.data import digits as dg
from etlib.data.arrays import array_batches
from etlib.spectral import Classifier, ClassifierConfig, Trajectory
from etlib.training import TrainConfig, data_mesh, train

# Chosen on the validation images among 0.004 and 0.008 (energy: 0.004 to 0.02), at depth 8 and
# seed 0; one value for plus, plain and minus, so that nothing but the spectrum differs.
LEARNING_RATE = {"plus": 4e-3, "plain": 4e-3, "minus": 4e-3, "energy": 1e-2}

PROTOCOL = (
    "accuracy after the last step on 360 held-out images, never used for a choice; "
    "learning rate chosen on 360 others"
)


@dataclass(frozen=True)
class Experiment:
    """One training: the model, its share of the 1,077 training images, and the budget."""

    model: ClassifierConfig = field(default_factory=ClassifierConfig)
    n_steps: int = 400
    batch: int = 32
    train_fraction: float = 1.0
    seed: int = 0


def mean_loss(model: Classifier, images, labels) -> Float[Array, ""]:
    """Cross-entropy, averaged over images."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
    return losses.mean()


def fit(experiment: Experiment, data: dg.Digits, progress: bool = False) -> Classifier:
    """Train a classifier on its share of the training images."""
    e = experiment
    model = Classifier(e.model, rngs=nnx.Rngs(e.seed))
    share = dg.subset(data.train, e.train_fraction, e.seed)
    batches = array_batches(share._asdict(), e.batch, e.seed)
    config = TrainConfig(
        n_steps=e.n_steps,
        warmup_steps=e.n_steps // 10,
        peak_lr=LEARNING_RATE[e.model.name],
        b2=0.999,
        weight_decay=0.0,
    )  # its seed does not matter: the loss draws nothing

    def loss(model, batch, key):
        return mean_loss(model, batch["images"], batch["labels"]), {}

    mesh = data_mesh(jax.devices()[:1])  # these models are small: one device is the fastest
    train(model, loss, batches, config, log_every=e.n_steps, progress=progress, mesh=mesh)
    return model


def accuracies(model: Classifier, data: dg.Digits) -> dict[str, float | list[float]]:
    """Accuracy on each part, and on the test images under every corruption and severity."""
    harmed = {
        kind: [dg.corrupt(data.test.images, kind, severity) for severity in severities]
        for kind, severities in dg.SEVERITIES.items()
    }
    # All in one call: compiling for each size would take longer than computing.
    images = [part.images for part in data] + [i for group in harmed.values() for i in group]
    answers = nnx.jit(lambda model, images: model(images).argmax(-1))(
        model, jnp.concatenate(images)
    )
    parts = np.split(np.asarray(answers), np.cumsum([len(i) for i in images])[:-1])

    def share(answers, labels):
        return float((answers == labels).mean())

    names = ("train_accuracy", "validation_accuracy", "accuracy")
    metrics: dict[str, float | list[float]] = {
        name: share(answers, split.labels)
        for name, answers, split in zip(names, parts[:3], data, strict=True)
    }
    corrupted = iter([share(part, data.test.labels) for part in parts[3:]])
    for kind, group in harmed.items():
        metrics[f"accuracy_{kind}"] = [next(corrupted) for _ in group]
    return metrics


@nnx.jit
def trajectory(model: Classifier, images: Float[Array, "b s s"]) -> Trajectory:
    """`Classifier.trajectory`, compiled."""
    return model.trajectory(images)


def smoothing(model: Classifier, images: Float[np.ndarray, "b s s"]) -> dict[str, list[float]]:
    """Measures of the tokens before the first and after every layer, averaged over images."""

    tokens = trajectory(model, jnp.asarray(images)).tokens
    measures = {
        "high_low": dynamics.high_low_ratio,
        "cosine": dynamics.mean_cosine,
        "effective_rank": dynamics.effective_rank,
    }
    return {name: np.mean(of(tokens), axis=-1).tolist() for name, of in measures.items()}


def mode_spectra(model: Classifier, images: Float[np.ndarray, "b s s"]) -> dict[str, list[float]]:
    """Per layer: the largest |1 + lambda_A lambda_H|, the share of images in which its
    lambda_A is the constant vector's, and the ends of H's spectrum (real parts).

    Only for models with an H.
    """
    attention = np.asarray(trajectory(model, jnp.asarray(images)).attention, np.float64)
    spectra: dict[str, list[float]] = {n: [] for n in ("mode", "constant_wins", "H_min", "H_max")}
    for A, H in zip(attention, np.asarray(model.layers.H(), np.float64), strict=True):
        lambda_H = np.linalg.eigvals(H)
        lambda_A = np.linalg.eigvals(A)  # (images, N)
        size = np.abs(1 + lambda_A[:, :, None] * lambda_H).max(axis=-1)
        winner = np.take_along_axis(lambda_A, size.argmax(axis=-1)[:, None], axis=-1)
        spectra["mode"].append(float(size.max(axis=-1).mean()))
        spectra["constant_wins"].append(float((np.abs(winner - 1) < 1e-6).mean()))
        spectra["H_min"].append(float(lambda_H.real.min()))
        spectra["H_max"].append(float(lambda_H.real.max()))
    return spectra


def layer_jacobians(
    model: Classifier, image: Float[np.ndarray, "s s"], n_layers: int
) -> dict[str, list[float]]:
    """Of up to n_layers layers, evenly spread over the depth, the Jacobian by the tokens at one
    image: its dominating eigenvalue's modulus and imaginary part (share of the modulus), and
    how much of its eigenvector is constant over tokens.

    Defined for every model, with layer norm and MLP inside. For the Energy Transformer all
    eigenvalues are real: the Jacobian is 1 - alpha S M, S the energy's Hessian by g, and M the
    layer norm's Jacobian, symmetric and positive semi-definite.
    """
    tokens = model.trajectory(jnp.asarray(image)[None]).tokens[:-1, 0]
    depth, N, D = tokens.shape
    chosen = np.unique(np.linspace(0, depth - 1, n_layers).round().astype(int))
    jacobian = nnx.jit(lambda model, x, index: jax.jacfwd(lambda x: model.layers.one(x, index))(x))
    found: dict[str, list[float]] = {
        n: [] for n in ("jacobian_layer", "jacobian_top", "jacobian_turn", "jacobian_constant")
    }
    for index in chosen:
        J = np.asarray(jacobian(model, tokens[index], jnp.asarray(index)), np.float64)
        values, vectors = np.linalg.eig(J.reshape(N * D, N * D))
        top = np.abs(values).argmax()
        vector = vectors[:, top].reshape(N, D)
        constant = N * (np.abs(vector.mean(axis=0)) ** 2).sum()  # eigenvectors have norm one
        found["jacobian_layer"].append(float(index))
        found["jacobian_top"].append(float(abs(values[top])))
        found["jacobian_turn"].append(float(abs(values[top].imag) / abs(values[top])))
        found["jacobian_constant"].append(float(constant))
    return found


def as_loss(model: Classifier, images, labels):
    """(loss of the parameters, the parameters), for `landscape`."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    images, labels = jnp.asarray(images), jnp.asarray(labels)
    return lambda params: mean_loss(nnx.merge(graph, params, rest), images, labels), params


def curvature(model: Classifier, data: dg.Digits, n_images: int) -> dict[str, float]:
    """The ends of the Hessian of the training loss over the first n_images images."""
    loss, params = as_loss(model, *(part[:n_images] for part in data.train))
    smallest, largest = landscape.hessian_ends(loss, params, tolerance=1e-2)
    return {
        "hessian_min": float(smallest[0]),
        "hessian_max": float(largest[-1]),
        "hessian_loss": float(loss(params)),
    }


def stacked_layers(params: PyTree) -> PyTree:
    """For `landscape.filter_normalised`: which arrays have one slice a layer."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "layers" in str(path) and "block" not in str(path), params
    )


def slice_around(
    model: Classifier, data: dg.Digits, n_images: int, radius: float, n_points: int, seed: int = 0
) -> Float[np.ndarray, "n n"]:
    """Training loss over a filter-normalised plane through the model."""
    loss, params = as_loss(model, *(part[:n_images] for part in data.train))
    stacked = stacked_layers(params)
    one, two = (
        landscape.filter_normalised(params, key, stacked)
        for key in jax.random.split(jax.random.key(seed))
    )
    radii = np.linspace(-radius, radius, n_points, dtype=np.float32)
    return landscape.loss_slice(loss, params, one, two, radii)


def measure(
    model: Classifier,
    data: dg.Digits,
    *,
    n_images: int = 64,
    n_jacobians: int = 0,
    hessian_images: int = 0,
    slice_points: int = 0,
    slice_radius: float = 1.0,
) -> dict[str, float | list[float]]:
    """All metrics of a trained model; zero turns the costly ones off."""
    images = data.test.images[:n_images]
    metrics = accuracies(model, data) | smoothing(model, images)
    if model.config.name != "energy":
        metrics |= mode_spectra(model, images)
    if n_jacobians:
        metrics |= layer_jacobians(model, images[0], n_jacobians)
    if hessian_images:
        metrics |= curvature(model, data, hessian_images)
    if hessian_images and slice_points:
        plane = slice_around(model, data, hessian_images, slice_radius, slice_points)
        metrics["loss_slice"] = plane.ravel().tolist()
    parameters = jax.tree.leaves(nnx.state(model, nnx.Param))
    return metrics | {"n_parameters": float(sum(p.size for p in parameters))}
