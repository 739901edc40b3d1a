"""JAX renderers and training pipelines for point-based neural rendering on one device."""

from splat.cameras import Camera
from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.options import RenderOptions
from splat.render import RenderOutput, bin_view, count_pairs, render

__all__ = ["Camera", "Gaussians", "RenderOptions", "RenderOutput", "UserError", "bin_view", "count_pairs", "render"]
