"""Patterns of ``sentences`` for what exactly is wrong with a file of a version: the middle of a rejection."""

from typing import Final

from django.utils.translation import gettext_noop as _

_OF_ANY: Final = (
    _("it is not UTF-8 text"),
    _("it is not a JSON object"),
    _("it is not JSON (%(told)s)"),
    _("it has no weight_map from tensors to files"),
    _("tensor %(name)s is in another shard too"),
    _("the index does not place tensor %(name)s here"),
    _("tensor %(name)s overlaps another one"),
    _("tensor %(name)s leaves a hole before it"),
    _("tensor %(name)s ends behind the end of the file, which is cut off"),
    _("%(count)s bytes at its end belong to nothing"),
    _("%(count)s bytes before tensor %(name)s belong to nothing"),
    _("tensor %(name)s claims the shape %(shape)s"),
)
_OF_SAFETENSORS: Final = (
    _("it names %(count)s tensors, more than %(most)s"),
    _("the header describes %(count)s bytes and %(total)s are there: the file is cut off"),
    _("the header describes %(count)s bytes and %(total)s are there: the file has bytes that no tensor names"),
    _("it is too short to have a header"),
    _("its header claims %(count)s bytes"),
    _("its header is not JSON"),
    _("its header is not JSON (%(told)s)"),
    _("its header is not a JSON object"),
    _("tensor %(name)s needs dtype, shape and data_offsets"),
    _("tensor %(name)s has a shape or offsets that are not whole numbers"),
    _("tensor %(name)s claims more elements than any file has"),
    _("tensor %(name)s of shape %(shape)s and type %(kind)s needs %(count)s bytes, not %(other)s"),
)
_OF_GGUF: Final = (
    _("it does not begin with GGUF"),
    _("it claims %(count)s tensors and %(total)s facts"),
    _("the fact %(name)s is there twice"),
    _("tensor %(name)s is there twice"),
    _("it ends in the middle of its header"),
    _("it claims a text of %(count)s bytes, more than %(most)s"),
    _("it claims a text of %(count)s bytes"),
    _("a text in its header is not UTF-8"),
    _("a fact has the unknown type %(kind)s"),
    _("an array of type %(kind)s is not read"),
    _("it claims an array of %(count)s entries"),
    _("its alignment is no multiple of 8 up to 65536"),
    _("rows of tensor %(name)s have %(count)s elements, no multiple of %(block)s"),
)
_OF_ONNX: Final = (
    _("its output %(name)s comes from no node, input or weight"),
    _("it has two graphs"),
    _("it is no ONNX model: it has no graph, or no IR version"),
    _("graphs stand in each other more than %(most)s deep"),
    _("it has more than %(most)s values"),
    _("it has more than %(most)s nodes"),
    _("it has more than %(most)s tensors, or one of more than %(count)s dimensions"),
    _("it carries what it was trained with (training_info)"),
    _("it has sparse weights"),
    _("a tensor of it is cut in segments"),
    _("tensor %(name)s of shape %(shape)s and type %(kind)s does not have its bytes"),
    _("it does not say where the bytes of tensor %(name)s are"),
    _("tensor %(name)s needs %(count)s bytes, and %(other)s are named in %(file)s"),
    _("input %(name)s has the type %(kind)s"),
    _("output %(name)s has the type %(kind)s"),
    _("input %(name)s is no array (a sequence or a map)"),
    _("output %(name)s is no array (a sequence or a map)"),
)
#: Of the message that an ONNX file is, and of names that are none of a tensor.
_OF_PROTOBUF: Final = (
    _("it has more parts than any model"),
    _("a part of it has no number"),
    _("a part of it has the kind %(kind)s"),
    _("a text has %(count)s bytes, more than %(most)s"),
    _("its names are longer than those of any model"),
    _("a text is not UTF-8"),
    _("a list has more than %(most)s numbers"),
    _("a list of numbers ends within one"),
    _("a number has more than 64 bits"),
    _("it ends in the middle of a number, or a number has no end"),
    _("a part claims to end %(count)s bytes behind what holds it"),
    _("part %(number)s of a message has the kind %(kind)s, not %(other)s"),
    _("part %(number)s is no message"),
    _("tensor %(name)s has %(count)s dimensions"),
    _("%(name)s has %(count)s dimensions"),
)
DETAILS: Final = (*_OF_ANY, *_OF_SAFETENSORS, *_OF_GGUF, *_OF_ONNX, *_OF_PROTOBUF)
