"""Models of third-party packages, for ``python -m torchmdla.testing --programs packages_of_others.models``.

Widths, depths and inputs are small, weights are random, and nothing is downloaded. A package is imported when a model
is created. Packages that are not installed are left out. Each model runs twice: forward in eval mode, and as
``name:gradients`` in training mode, with the gradients of inputs and parameters.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from packages_of_others import operators  # before torchvision
from torchmdla.testing.programs.inputs import between, integers, normal
from torchmdla.testing.programs.program import Entry, Program, Tag, in_eval, modules

Make = Callable[[], nn.Module]


def of(place: str, *args: Any, **options: Any) -> Make:
    """Return a function that calls ``module:name`` with arguments."""
    module, _, name = place.partition(":")
    return lambda: getattr(importlib.import_module(module), name)(*args, **options)


def configured(model: str, config: str, **options: Any) -> Make:
    """Return a function that creates a model of transformers, from the names of its class and its configuration."""

    def make() -> nn.Module:
        package = importlib.import_module("transformers")
        return getattr(package, model)(getattr(package, config)(return_dict=False, use_cache=False, **options))

    return make


IMAGE = normal(2, 3, 32, 32)
PICTURE = normal(2, 3, 64, 64)
VOLUME = normal(1, 1, 16, 16, 16)
TOKENS = integers(2, 12, high=50)
SOUND = normal(2, 1600)
NODES, EDGES = normal(10, 8), integers(2, 30, high=10)

# --- images ------------------------------------------------------------------------------------------------------


def timm(name: str, **options: Any) -> Make:
    """Return a function that creates a model of timm without pretrained weights."""
    return of("timm:create_model", name, num_classes=10, **options)


TIMM = {
    # These are timm's own test models, which are small models of whole families.
    **{
        name.partition("_")[2]: (timm(name), IMAGE)
        for name in ("test_resnet", "test_efficientnet", "test_nfnet", "test_byobnet", "test_mambaout")
    },
    "convnext": (timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), IMAGE),
    "vit": (timm("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=48), IMAGE),
    "mixer": (of("timm.models:MlpMixer", img_size=32, patch_size=8, num_blocks=2, embed_dim=32), IMAGE),
    "swin": (
        timm("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=24, depths=(1, 2), num_heads=(2, 4)),
        IMAGE,
    ),
    "metaformer": (of("timm.models:MetaFormer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=10), IMAGE),
    "convmixer": (of("timm.models:ConvMixer", 16, 2), IMAGE),
}

TORCHVISION = {
    "squeezenet": (of("torchvision.models:squeezenet1_1", num_classes=10), IMAGE),
    "shufflenet": (of("torchvision.models:shufflenet_v2_x0_5", num_classes=10), IMAGE),
    "vit": (
        of(
            "torchvision.models:VisionTransformer",
            image_size=32,
            patch_size=8,
            num_layers=2,
            num_heads=4,
            hidden_dim=32,
            mlp_dim=64,
            num_classes=10,
        ),
        IMAGE,
    ),
    "swin": (
        of(
            "torchvision.models:SwinTransformer",
            patch_size=[4, 4],
            embed_dim=16,
            depths=[1, 2],
            num_heads=[2, 4],
            window_size=[4, 4],
            num_classes=10,
        ),
        IMAGE,
    ),
    "swin3d": (
        of(
            "torchvision.models.video.swin_transformer:SwinTransformer3d",
            patch_size=[2, 4, 4],
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 4],
            window_size=[2, 4, 4],
            num_classes=10,
        ),
        normal(1, 3, 4, 32, 32),
    ),
}

SEGMENTATION = {
    name.lower(): (
        of(
            f"segmentation_models_pytorch:{name}",
            "tu-test_resnet",
            encoder_weights=None,
            encoder_depth=depth,
            classes=2,
            **options,
        ),
        PICTURE,
    )
    for name, depth, options in (
        ("Unet", 3, {"decoder_channels": (32, 16, 8)}),
        ("FPN", 5, {"decoder_pyramid_channels": 16, "decoder_segmentation_channels": 32}),
        ("PSPNet", 3, {"psp_out_channels": 16}),
        ("Linknet", 3, {}),
        ("DeepLabV3Plus", 4, {"decoder_channels": 16}),
    )
}

FACENET = {
    "pnet": (of("facenet_pytorch.models.mtcnn:PNet", pretrained=False), normal(2, 3, 24, 24)),
    "rnet": (of("facenet_pytorch.models.mtcnn:RNet", pretrained=False), normal(2, 3, 24, 24)),
    "onet": (of("facenet_pytorch.models.mtcnn:ONet", pretrained=False), normal(2, 3, 48, 48)),
}

KORNIA = {
    "gaussian_blur": (of("kornia.filters:GaussianBlur2d", (3, 3), (1.5, 1.5)), IMAGE),
    "sobel": (of("kornia.filters:Sobel"), IMAGE),
    "median_blur": (of("kornia.filters:MedianBlur", (3, 3)), IMAGE),
    "lab": (of("kornia.color:RgbToLab"), between(0.0, 1.0, 2, 3, 9, 9)),
    "hsv": (of("kornia.color:RgbToHsv"), between(0.0, 1.0, 2, 3, 9, 9)),
    "hardnet": (of("kornia.feature:HardNet", False), normal(2, 1, 32, 32)),
    "ssim": (of("kornia.losses:SSIMLoss", 5), between(0.0, 1.0, 1, 3, 12, 12), between(0.0, 1.0, 1, 3, 12, 12)),
}

YOLO = {
    "nc": 3,
    "scales": {"n": [0.33, 0.125, 256]},
    "backbone": [
        [-1, 1, "Conv", [64, 3, 2]],
        [-1, 1, "Conv", [128, 3, 2]],
        [-1, 3, "C2f", [128, True]],
        [-1, 1, "Conv", [256, 3, 2]],
        [-1, 1, "SPPF", [256, 5]],
    ],
    "head": [
        [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
        [[-1, 2], 1, "Concat", [1]],
        [-1, 3, "C2f", [128]],
        [[7, 4], 1, "Detect", ["nc"]],
    ],
}


class Heads(nn.Module):
    """Small detector of ultralytics without the postprocessing of boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = importlib.import_module("ultralytics.nn.tasks").DetectionModel(YOLO, verbose=False).train()

    def forward(self, image: Tensor) -> Any:
        """Return the results of the heads at each scale."""
        return self.model(image)

    def train(self, mode: bool = True) -> nn.Module:
        """Keep the detector in training mode. In eval mode it would store anchors between calls."""
        return self


ULTRALYTICS = {
    "yolo": (Heads, PICTURE),
    "c2f": (of("ultralytics.nn.modules:C2f", 8, 8, n=1, shortcut=True), normal(2, 8, 16, 16)),
    "sppf": (of("ultralytics.nn.modules:SPPF", 8, 8), normal(2, 8, 16, 16)),
    "c3k2": (of("ultralytics.nn.modules:C3k2", 8, 8, n=1), normal(2, 8, 16, 16)),
    "psa": (of("ultralytics.nn.modules:C2PSA", 128, 128), normal(1, 128, 8, 8)),
}


class Detector(nn.Module):
    """Detector of torchvision whose argument is one picture."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        operators.announce()
        detection = importlib.import_module("torchvision.models.detection")
        backbone = detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
        )
        self.model = getattr(detection, name)(backbone, 3, min_size=64, max_size=96, **options)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Return boxes, labels and scores."""
        results = self.model([image])
        if torch.jit.is_scripting():
            return results[1][0]
        else:
            return results[0]


def detectors() -> Iterator[Program]:
    """Yield detectors. They are only scripted, because they branch on values and are large."""
    for name, options in (
        ("FasterRCNN", {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20, "box_detections_per_img": 5}),
        ("RetinaNet", {"topk_candidates": 50, "detections_per_img": 5, "score_thresh": 0.0}),
        ("FCOS", {"topk_candidates": 50, "detections_per_img": 5, "score_thresh": 0.0}),
    ):
        yield Program(
            f"torchvision.{name.lower()}",
            lambda name=name, options=options: Detector(name, **options).eval(),
            (between(0.0, 1.0, 3, 64, 80),),
            layers=40,
            tags=frozenset({"scripted"}),
        )


# --- volumes -----------------------------------------------------------------------------------------------------

MONAI = {
    "unet": (of("monai.networks.nets:UNet", 3, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1), VOLUME),
    "basic_unet": (of("monai.networks.nets:BasicUNet", 2, 1, 2, features=(4, 4, 8, 8, 8, 4)), normal(1, 1, 32, 32)),
    "segresnet": (of("monai.networks.nets:SegResNet", 3, 8, blocks_down=(1, 1), blocks_up=(1,)), VOLUME),
    "attention_unet": (of("monai.networks.nets:AttentionUnet", 2, 1, 2, (4, 8), (2, 2)), normal(1, 1, 32, 32)),
    "dynunet": (
        of("monai.networks.nets:DynUNet", 2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 8]),
        normal(1, 1, 16, 16),
    ),
    "vit": (of("monai.networks.nets:ViT", 1, 16, 8, hidden_size=32, mlp_dim=48, num_layers=2, num_heads=4), VOLUME),
    "autoencoder": (of("monai.networks.nets:AutoEncoder", 2, 1, 1, (4, 8), (2, 2)), normal(1, 1, 16, 16)),
    "densenet": (
        of("monai.networks.nets:DenseNet", 3, 1, 2, init_features=8, growth_rate=4, block_config=(1, 2)),
        VOLUME,
    ),
}

# --- atoms and graphs --------------------------------------------------------------------------------------------

E3NN = {
    "linear": (of("e3nn.o3:Linear", "4x0e+3x1o", "2x0e+2x1o"), normal(5, 13)),
    "tensor_product": (
        of("e3nn.o3:FullyConnectedTensorProduct", "2x0e+1x1o", "1x0e+1x1o", "2x0e+2x1o"),
        normal(5, 5),
        normal(5, 4),
    ),
    "harmonics": (of("e3nn.o3:SphericalHarmonics", [0, 1, 2], True), normal(7, 3)),
    "batch_norm": (of("e3nn.nn:BatchNorm", "4x0e+3x1o"), normal(6, 13)),
    "norm": (of("e3nn.o3:Norm", "4x0e+3x1o"), normal(6, 13)),
}


def convolution(name: str, *args: Any, **options: Any) -> Make:
    """Return a function that creates a layer of torch-geometric."""
    return of(f"torch_geometric.nn:{name}", *args, **options)


def edge_convolution() -> nn.Module:
    """Return a layer with a network for each edge."""
    return convolution("EdgeConv", nn.Sequential(nn.Linear(16, 8), nn.ReLU()))()


GEOMETRIC = {
    **{
        name.lower(): (convolution(name, 8, 4), NODES, EDGES)
        for name in (
            "GCNConv",
            "GATConv",
            "GATv2Conv",
            "SAGEConv",
            "TransformerConv",
            "TAGConv",
            "LEConv",
            "ResGatedGraphConv",
            "ClusterGCNConv",
            "GraphConv",
        )
    },
    "edgeconv": (edge_convolution, NODES, EDGES),
    "gcn": (convolution("GCN", 8, 8, 2, 4, dropout=0.1), NODES, EDGES),
    "gin": (convolution("GIN", 8, 8, 2, 4), NODES, EDGES),
}


class Representation(nn.Module):
    """Representation of schnetpack whose arguments are tensors instead of a dictionary."""

    def __init__(self, name: str) -> None:
        super().__init__()
        schnetpack = importlib.import_module("schnetpack")
        radial = schnetpack.nn.GaussianRBF(8, 5.0)
        representation = getattr(schnetpack.representation, name)
        self.representation = representation(16, 2, radial, schnetpack.nn.CosineCutoff(5.0))

    def forward(self, numbers: Tensor, distances: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the scalar representation of each atom."""
        inputs = {"_atomic_numbers": numbers, "_Rij": distances, "_idx_i": first, "_idx_j": second}
        return self.representation(inputs)["scalar_representation"]


ATOMS = (integers(6, low=1, high=9), normal(20, 3), integers(20, high=6), integers(20, high=6))
SCHNETPACK = {"schnet": (lambda: Representation("SchNet"), *ATOMS), "painn": (lambda: Representation("PaiNN"), *ATOMS)}


class Energies(nn.Module):
    """Model of torchani with species and coordinates as two arguments."""

    def __init__(self) -> None:
        super().__init__()
        make = importlib.import_module("torchani.arch").simple_ani
        self.model = make(("H", "C", "O"), "wb97x-631gd", radial_shifts=4, angular_shifts=2, repulsion=False)

    def forward(self, species: Tensor, coordinates: Tensor) -> Tensor:
        """Return the energy of each molecule."""
        return self.model((species, coordinates))[1]


TORCHANI = {"ani": (Energies, torch.tensor([[6, 1, 1, 8], [8, 1, 1, 6]]), normal(2, 4, 3))}

# --- text and sound ----------------------------------------------------------------------------------------------

_BERT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2}

TRANSFORMERS = {
    "bert": (configured("BertModel", "BertConfig", **_BERT), TOKENS),
    "electra": (configured("ElectraModel", "ElectraConfig", embedding_size=16, **_BERT), TOKENS),
    "distilbert": (
        configured("DistilBertModel", "DistilBertConfig", vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=48),
        TOKENS,
    ),
    "gpt2": (
        configured("GPT2Model", "GPT2Config", vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=40),
        TOKENS,
    ),
    "llama": (configured("LlamaModel", "LlamaConfig", **_LLAMA), TOKENS),
    "t5": (
        configured("T5EncoderModel", "T5Config", vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
        TOKENS,
    ),
    "vit": (
        configured(
            "ViTModel",
            "ViTConfig",
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            image_size=32,
            patch_size=8,
        ),
        IMAGE,
    ),
}

WAV2VEC = {
    "extractor_mode": "group_norm",
    "extractor_conv_layer_config": [(16, 10, 5), (16, 3, 2), (16, 3, 2)],
    "extractor_conv_bias": False,
    "encoder_embed_dim": 16,
    "encoder_projection_dropout": 0.1,
    "encoder_pos_conv_kernel": 8,
    "encoder_pos_conv_groups": 2,
    "encoder_num_layers": 2,
    "encoder_num_heads": 4,
    "encoder_attention_dropout": 0.1,
    "encoder_ff_interm_features": 24,
    "encoder_ff_interm_dropout": 0.1,
    "encoder_dropout": 0.1,
    "encoder_layer_norm_first": False,
    "encoder_layer_drop": 0.1,
    "aux_num_out": 8,
}


def wav2vec2() -> nn.Module:
    """Return a model without weight norm, which torchaudio removes when the model is scripted."""
    module: nn.Module = of("torchaudio.models:wav2vec2_model", **WAV2VEC)()
    module.encoder.transformer.pos_conv_embed.__prepare_scriptable__()
    return module


TORCHAUDIO = {
    "wav2vec2": (wav2vec2, SOUND),
    "conv_tasnet": (
        of(
            "torchaudio.models:ConvTasNet",
            num_sources=2,
            enc_kernel_size=8,
            enc_num_feats=16,
            msk_num_feats=16,
            msk_num_hidden_feats=16,
            msk_num_layers=2,
            msk_num_stacks=1,
        ),
        normal(2, 1, 400),
    ),
    "conformer": (of("torchaudio.models:Conformer", 16, 2, 24, 2, 5, 0.1), normal(2, 12, 16), torch.tensor([12, 9])),
    "deepspeech": (of("torchaudio.models:DeepSpeech", 16, 24, 8), normal(2, 1, 10, 16)),
    "mel": (of("torchaudio.transforms:MelSpectrogram", 16000, n_fft=64, n_mels=8), SOUND),
    "mfcc": (
        of("torchaudio.transforms:MFCC", 16000, 8, melkwargs={"n_fft": 64, "n_mels": 12, "hop_length": 32}),
        SOUND,
    ),
}


class PlainDetector(nn.Module):
    """Speech detector of silero-vad, run by PyTorch's interpreter without any pass."""

    def __init__(self) -> None:
        super().__init__()
        self.model = detector()

    def forward(self, sound: Tensor, rate: int) -> Tensor:
        """Return the probability of speech."""
        with torch.jit.optimized_execution(False):
            result: Tensor = self.model(sound, rate)
            return result


def detector() -> nn.Module:
    """Return silero-vad's detector, which the package contains as a TorchScript file."""
    model: nn.Module = importlib.import_module("silero_vad").load_silero_vad()
    return model


def silero() -> Iterator[Program]:
    """Yield programs of silero-vad's file. They are compared with the same file without compiled groups."""
    for rate, samples in ((16000, 512), (8000, 256)):
        yield Program(f"silero.vad{rate}", PlainDetector, (normal(1, samples), rate), layers=8, rewritten=detector)


# --- agents and diffusion ----------------------------------------------------------------------------------------


def spaces(size: int, actions: int) -> tuple[Any, Any]:
    """Return a space of observations and a space of actions."""
    module = importlib.import_module("gymnasium.spaces")
    return module.Box(-1.0, 1.0, (size,)), module.Box(-1.0, 1.0, (actions,))


def critic() -> nn.Module:
    """Return a network of stable-baselines3 for the values of actions."""
    network = importlib.import_module("stable_baselines3.common.policies").ContinuousCritic
    observations, actions = spaces(6, 2)
    return network(observations, actions, [16, 16], nn.Identity(), 6)


def convolutional() -> nn.Module:
    """Return stable-baselines3's network for pictures of games."""
    box = importlib.import_module("gymnasium.spaces").Box(0, 1, (3, 36, 36))
    return importlib.import_module("stable_baselines3.common.torch_layers").NatureCNN(box, 16, normalized_image=True)


class Policy(nn.Module):
    """Policy of stable-baselines3 that chooses the most likely action."""

    def __init__(self) -> None:
        super().__init__()
        policy = importlib.import_module("stable_baselines3.common.policies").ActorCriticPolicy
        self.policy = policy(*spaces(6, 2), lambda _: 1e-3)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values, and the logarithms of the actions' probabilities."""
        result: tuple[Tensor, Tensor, Tensor] = self.policy(observations, deterministic=True)
        return result


BASELINES = {
    "critic": (critic, normal(3, 6), normal(3, 2)),
    "nature_cnn": (convolutional, between(0.0, 1.0, 2, 3, 36, 36)),
    "policy": (Policy, normal(3, 6)),
}


class Tuples(nn.Module):
    """Model of diffusers whose results are tuples."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.model = getattr(importlib.import_module("diffusers"), name)(**options)

    def forward(self, *inputs: Tensor) -> Any:
        """Return the model's results as a tuple."""
        return self.model(*inputs, return_dict=False)


def diffusing(name: str, **options: Any) -> Make:
    """Return a function that creates a model of diffusers."""
    return lambda: Tuples(name, **options)


_BLOCKS = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}

DIFFUSERS = {
    "unet": (
        diffusing(
            "UNet2DModel",
            sample_size=16,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=4,
            **_BLOCKS,
        ),
        normal(1, 3, 16, 16),
        torch.tensor([7]),
    ),
    "unet_condition": (
        diffusing(
            "UNet2DConditionModel",
            sample_size=8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=12,
            attention_head_dim=4,
            **_BLOCKS,
        ),
        normal(1, 4, 8, 8),
        torch.tensor([7]),
        normal(1, 5, 12),
    ),
    "autoencoder": (
        diffusing(
            "AutoencoderKL",
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            **_BLOCKS,
        ),
        normal(1, 3, 16, 16),
    ),
}

# --- the table ---------------------------------------------------------------------------------------------------


# Rounding dominates the gradients: for 3 of 10 random weights, eager's differ by 3 % from those in float64. Running
# means after other norms are zero except for rounding errors.
_FORWARD_ONLY = frozenset(("torchvision.shufflenet",))


def _both(programs: Iterator[Program]) -> Iterator[Program]:
    """Yield each program forward in eval mode, and with gradients in training mode.

    The gradient of a bias before a norm consists only of rounding errors.
    """
    for program in programs:
        yield from in_eval(iter([program]))
        if program.name in _FORWARD_ONLY:
            continue
        yield replace(
            program,
            name=f"{program.name}:gradients",
            make=_training(program.make),
            mode="gradients",
            layers=2 * program.layers,
            tags=program.tags | {"random"},
            in_doubt=True,
        )


def _training(make: Callable[[], Any]) -> Make:
    """Return a function that creates a model in training mode.

    Dropouts with probability 0 are switched off, because TorchScript draws other random numbers for them than eager.
    """

    def made() -> nn.Module:
        module: nn.Module = make()
        for part in module.modules():
            if isinstance(part, nn.Dropout) and part.p == 0:
                part.eval()
        return module

    return made


# From the required module to the family, the models, the number of layers for the tolerance, and the tags.
_TABLES: Mapping[str, tuple[str, Mapping[str, Entry], int, tuple[Tag, ...]]] = {
    "timm": ("timm", TIMM, 20, ()),
    "torchvision": ("torchvision", TORCHVISION, 20, ()),
    "segmentation_models_pytorch": ("segmentation", SEGMENTATION, 30, ()),
    "facenet_pytorch": ("facenet", FACENET, 6, ()),
    "kornia": ("kornia", KORNIA, 6, ()),
    "ultralytics": ("ultralytics", ULTRALYTICS, 6, ()),
    "monai": ("monai", MONAI, 20, ()),
    "e3nn": ("e3nn", E3NN, 4, ()),
    "torch_geometric": ("geometric", GEOMETRIC, 4, ()),
    "schnetpack": ("schnetpack", SCHNETPACK, 8, ()),
    "torchani": ("torchani", TORCHANI, 8, ()),
    "transformers": ("transformers", TRANSFORMERS, 12, ()),
    "torchaudio": ("torchaudio", TORCHAUDIO, 12, ()),
    "stable_baselines3": ("baselines", BASELINES, 4, ()),
    "diffusers": ("diffusers", DIFFUSERS, 30, ()),
}


def _registry() -> Iterator[Program]:
    for package, (family, table, layers, tags) in _TABLES.items():
        if importlib.util.find_spec(package) is not None:
            yield from _both(modules(family, table, *tags, layers=layers))
    if importlib.util.find_spec("torchvision") is not None:
        yield from detectors()
    if importlib.util.find_spec("silero_vad") is not None:
        yield from silero()


PROGRAMS: Mapping[str, Program] = {program.name: program for program in _registry()}


def programs(name: str, seed: int, limit: int | None) -> Iterator[Program]:
    """Yield the program of a name. The seed is not used, because the program draws its inputs itself."""
    yield PROGRAMS[name]
