"""The operations of the strong view on one image [channels, height, width], pixel by pixel, in float64."""

import math

import numpy as np


def bilinear(image, source, fill):
    """The image whose pixel at (row, column) is read at source(row, column), both from the center; `fill` outside."""
    channels, height, width = image.shape
    result = np.empty_like(image)
    for i, j in np.ndindex(height, width):
        down, right = source(i + 0.5 - height / 2, j + 0.5 - width / 2)
        down, right = down + height / 2 - 0.5, right + width / 2 - 0.5
        top, left = math.floor(down), math.floor(right)
        value = np.zeros(channels)
        for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            weight = (1 - abs(down - row)) * (1 - abs(right - column))
            inside = 0 <= row < height and 0 <= column < width
            value += weight * (image[:, row, column] if inside else fill)
        result[:, i, j] = value
    return result


def crop(image, area, shape, across, along, mirrored, fill):
    """A rectangle of 0.2 to 1 of the area, up to 4/3 times as wide as high or as high as wide, at the size of the image."""
    area, stretch = 0.2 + 0.8 * area, (4 / 3) ** (2 * shape - 1)
    wide, high = min(math.sqrt(area * stretch), 1), min(math.sqrt(area / stretch), 1)
    right = (across - 0.5) * (1 - wide) * image.shape[2]
    down = (along - 0.5) * (1 - high) * image.shape[1]
    sign = -1 if mirrored else 1
    return bilinear(image, lambda y, x: (down + high * y, right + sign * wide * x), fill)


def rotate(image, strength, fill):
    angle = math.radians(30) * strength
    c, s = math.cos(angle), math.sin(angle)
    return bilinear(image, lambda y, x: (s * x + c * y, c * x - s * y), fill)


def shear_x(image, strength, fill):
    return bilinear(image, lambda y, x: (y, x + 0.3 * strength * y), fill)


def shear_y(image, strength, fill):
    return bilinear(image, lambda y, x: (y + 0.3 * strength * x, x), fill)


def shift_x(image, strength, fill):
    return bilinear(image, lambda y, x: (y, x + 0.3 * strength * image.shape[2]), fill)


def shift_y(image, strength, fill):
    return bilinear(image, lambda y, x: (y + 0.3 * strength * image.shape[1], x), fill)


def gray(image):
    if len(image) == 3:
        return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    return image.mean(axis=0)


def away_from(image, other, strength):
    """Moved away from another image, or toward it if the strength is negative."""
    return np.clip(other + (1 + 0.9 * strength) * (image - other), 0, 1)


def brightness(image, strength):
    return away_from(image, np.zeros_like(image), strength)


def contrast(image, strength):
    return away_from(image, np.full_like(image, gray(image).mean()), strength)


def saturation(image, strength):
    return away_from(image, np.stack([gray(image)] * len(image)), strength)


def colored(image, bright, contrasted, saturated, turned):
    """Brightness, contrast and saturation up to 0.4 more or less, then hues turned by up to 36 degrees, each from 0 to 1."""
    image = brightness(image, (2 * bright - 1) * 0.4 / 0.9)
    image = contrast(image, (2 * contrasted - 1) * 0.4 / 0.9)
    image = saturation(image, (2 * saturated - 1) * 0.4 / 0.9)
    if len(image) != 3:
        return image
    axis, angle = np.ones(3) / math.sqrt(3), math.radians(36) * (2 * turned - 1)
    cross = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    rotation = np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross  # Rodrigues
    return np.clip(np.einsum("ij,jyx->iyx", rotation, image), 0, 1)


def sharpness(image, strength):
    blurred = np.empty_like(image)
    _, height, width = image.shape
    for c, i, j in np.ndindex(image.shape):
        around = [
            image[c, min(max(i + down, 0), height - 1), min(max(j + right, 0), width - 1)]
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
        ]
        blurred[c, i, j] = sum(around) / 9
    return away_from(image, blurred, strength)


def posterize(image, strength):
    """The last 0 to 4 bits of each byte set to zero."""
    bits = min(int(5 * abs(strength)), 4)
    result = np.empty_like(image)
    for at in np.ndindex(image.shape):
        result[at] = (round(image[at] * 255) >> bits << bits) / 255
    return result


def solarize(image, strength):
    result = image.copy()
    for at in np.ndindex(image.shape):
        if image[at] > 1 - abs(strength):
            result[at] = 1 - image[at]
    return result


def autocontrast(image, strength):
    result = image.copy()
    for c, channel in enumerate(image):
        if channel.max() - channel.min() >= 1e-3:
            result[c] = (channel - channel.min()) / (channel.max() - channel.min())
    return result


GEOMETRIC = {f.__name__: f for f in (rotate, shear_x, shear_y, shift_x, shift_y)}
COLORS = {f.__name__: f for f in (brightness, contrast, saturation, sharpness, posterize, solarize, autocontrast)}


def apply(name, image, strength, fill):
    if name == "identity":
        return image
    return GEOMETRIC[name](image, strength, fill) if name in GEOMETRIC else COLORS[name](image, strength)


def cut_out(image, at_row, at_column, part, fill):
    """A square whose side is `part` of the image's shorter one filled in, its center at fractions of height and width."""
    _, height, width = image.shape
    half = part * min(height, width) / 2
    result = image.copy()
    for i, j in np.ndindex(height, width):
        if abs(i + 0.5 - at_row * height) <= half and abs(j + 0.5 - at_column * width) <= half:
            result[:, i, j] = fill
    return result
