"""Patterns of ``sentences`` for what placement says: where replicas go, why nowhere, and what would help."""

from typing import Final

from django.utils.translation import gettext_noop as _
from django.utils.translation import pgettext_lazy

PLACES: Final = (
    _("Placed on %(device)s of node %(node)s."),
    _("Placed on %(device)s of %(node)s."),
    _("Goes to %(device)s."),
    _("There is no device in the fleet yet: join a node first."),
    _("Some devices could take a part of it, but too few for all of it at once."),
    _("None of %(total)s devices can take it (%(reasons)s). Nearest, on node %(node)s: %(why)s"),
    _("Node %(node)s is cordoned: nothing new is placed there."),
    _("Node %(node)s is being drained."),
    _("Node %(node)s does not answer."),
    _("This needs several nodes; node %(node)s takes part in no replica over several nodes."),
    _("Node %(node)s is %(phase)s; it has not reported for work yet."),
    _("This needs a MIG instance %(profile)s; this is no MIG instance."),
    _("This needs a MIG instance %(profile)s; this is %(other)s."),
    _("This needs a MIG instance %(profile)s; %(device)s can be cut into no MIG instances at all."),
    _("This needs a MIG instance %(profile)s; %(device)s can be cut into %(able)s."),
    _("On %(device)s it cannot be spread: %(why)s"),
    _("%(device)s has shares of the class %(isolation)s: no share of another class stands beside them."),
    _("A whole device is required; %(device)s is a MIG instance."),
    _("A limit on multiprocessors is kept by MPS; %(device)s is a MIG instance."),
    _("Needs %(count)s devices together over NVLink; node %(node)s has %(free)s that could."),
    _("Needs %(count)s devices together in groups of %(part)s over NVLink; node %(node)s has %(free)s that could."),
    _(
        "The %(engine)s engine divides experts like every other matrix and does not spread them: use tensor_parallel "
        "instead of expert_parallel."
    ),
    _("The version's facts do not say what it needs (%(why)s)."),
    _("A memory limit of %(size)s is too small: one replica needs %(need)s."),
    _("%(placed)s of %(total)s replicas would find a place. %(why)s"),
    _("This needs a device of kind %(kinds)s; %(device)s is %(kind)s."),
    _("This needs one of %(products)s; this is %(device)s."),
    _("%(device)s is simulated: no engine can run on it."),
    _("Its node does not report %(device)s any more."),
    _("%(device)s is %(health)s: %(why)s"),
    _("no details"),
    _("A whole device is needed; others hold parts of %(device)s."),
    _("%(device)s belongs to one replica as a whole."),
    _("Limits that the driver keeps (MPS) are required; a CPU has none."),
    _("Limits that the driver keeps (MPS) are required; the node of this GPU has no nvidia-cuda-mps-control."),
    _("Needs %(size)s of device memory; %(device)s has %(free)s free of %(total)s."),
    _("Needs %(share)s %% of a device's compute; %(device)s has %(free)s %% left."),
    _("Needs %(size)s of host memory; node %(node)s has %(free)s available right now, of %(total)s."),
    _("Needs %(size)s of host memory; node %(node)s has %(free)s not promised to others, of %(total)s."),
    _("Needs %(cpus)s; node %(node)s has %(free)s left of %(total)s."),
    _("Needs %(count)s devices together; node %(node)s has %(free)s that could."),
    _("The quota on GPUs is %(limit)s; %(held)s are held and %(more)s more are asked for."),
    _("The quota on device memory is %(limit)s; %(held)s are held and %(more)s more are asked for."),
    _(
        "This needs %(needed)s %(counted)s; the tenant's quota is %(limit)s, of which %(held)s is in use and %(free)s "
        "is left%(above)s. %(remedy)s or ask a platform admin for a larger quota."
    ),
    _(" (its group has no more)"),
    _("Stop a deployment, let a replica share a GPU,"),
    _("Stop a deployment, choose a smaller model or context,"),
    _("Scale another deployment down"),
    _("Archive and delete versions that are no longer needed"),
    _("Others end to make room for it; it starts when they have."),
    _("Deployed all the same, others make room for it: lower priorities, and what is above a guarantee. %(why)s"),
    _("It gave its place back: it was above what is guaranteed to the tenant, and was claimed. %(why)s"),
    _("It gave its place to %(name)s, which has a higher priority. %(why)s"),
    _("It gave its place back: it was above what is guaranteed to the tenant, and was claimed."),
    _("It gave its place to %(name)s, which has a higher priority."),
)

#: What a quota counts, as a sentence names it after a number.
COUNTED: Final = {
    "GPU": pgettext_lazy("after a number", "GPU"),
    "replica": pgettext_lazy("after a number", "replica"),
    "of device memory": pgettext_lazy("after a number", "of device memory"),
    "of storage": pgettext_lazy("after a number", "of storage"),
}

#: Ways over several devices, and why they cannot be: with the name of the way, and without.
PLANS: Final = (
    _("%(plan)s: %(why)s."),
    _("%(heads)s attention heads do not divide by %(ranks)s"),
    _("%(heads)s KV heads and %(ranks)s ranks do not divide"),
    _("an MLP of %(size)s inner values does not divide by %(ranks)s"),
    _("experts of %(size)s do not divide by %(ranks)s into blocks of %(block)s"),
    _("%(count)s experts do not divide by %(ranks)s"),
    _("%(ranks)s ranks of experts are no multiple of the %(count)s that share attention"),
    _("expert parallelism is for mixture-of-experts models, and this one is dense: it has no experts to spread"),
    _("nothing joins the groups of devices that it needs"),
    _("it needs several nodes: of %(total)s with %(product)s, %(able)s take part in replicas over several nodes"),
    _("%(layers)s layers are fewer than %(count)s stages"),
    _("the engine cannot run this architecture in stages"),
    _("%(ranks)s ranks need one node of %(count)s devices; the largest has %(most)s"),
    _("%(ranks)s ranks need one domain of %(count)s; the largest has %(most)s"),
    _(
        "tensor parallelism over %(link)s: %(bytes)s bytes per token and rank in %(calls)s all-reduces "
        "per step; say tp_over_pcie, or use stages"
    ),
    _("all-to-all over %(link)s: %(bytes)s bytes per token and rank; say tp_over_pcie, or use stages"),
    _("%(weights)s of weights and %(size)s of workspace per device do not fit %(total)s: short by %(more)s"),
    _(
        "%(weights)s of weights and %(size)s of workspace per device leave %(total)s: %(free)s tokens "
        "of KV cache, %(count)s are needed"
    ),
    _(
        "%(plan)s is enough: %(count)s devices send %(bytes)s bytes per token and rank instead of "
        "%(less)s; more load is for more replicas"
    ),
    _("%(plan)s comes first on as many devices"),
    _("%(plan)s is asked for"),
    _("one device"),
)

#: What would make it fit, in clauses. The first two join others.
ADVICE: Final = (
    _("%(first)s; and %(rest)s"),
    _("%(first)s Besides: %(rest)s"),
    _("the tenant's quota were larger, or it held less"),
    _("a node with a CPU or GPU joined the fleet"),
    _("the model were uploaded in a format that an engine here runs"),
    _("a node with a free device of what it needs joined the fleet"),
    _("more devices of this kind joined, or it were split less"),
    _("%(size)s more were free on %(device)s of node %(node)s: %(acts)s"),
    _("%(size)s more were free on %(device)s of node %(node)s"),
    _("%(device)s of node %(node)s had %(size)s more memory: %(acts)s"),
    _("%(device)s of node %(node)s had %(size)s more memory"),
    _("stop another replica there"),
    _("stop %(names)s there"),
    _("store its weights as %(kind)s"),
    _("lower max_model_len or the KV cache by %(size)s"),
    _("lower max_model_len or the KV cache"),
    _("lower max_num_seqs"),
    _("lower thread_percentage"),
    _("lower num_threads"),
    _("%(share)s %% more of the compute of %(device)s were free on node %(node)s: %(acts)s"),
    _("node %(node)s had %(size)s more host memory"),
    _("%(size)s more host memory were free on node %(node)s"),
    _("num_threads were lower by %(cpus)s (node %(node)s has %(total)s)"),
    _("%(cpus)s more were free on node %(node)s: %(acts)s"),
    _("%(count)s more of the devices of node %(node)s could take a part of it"),
    _("%(device)s were free: whatever holds it would have to stop"),
    _("node %(node)s were in service: a platform admin can uncordon it"),
    _("the agent of node %(node)s were given an address for ranks (MILLPOND_RANK_ADDRESS)"),
    _("the agents of more of these nodes were given an address for ranks (MILLPOND_RANK_ADDRESS)"),
    _("node %(node)s reported again"),
    _("%(device)s were well again"),
    _("tp_over_pcie were set, or it were spread in stages (pipeline_parallel)"),
    _("another number of ranks were asked for, or none: one that works is chosen then"),
    _("another way were asked for, or none: one that works is chosen then"),
    _("fewer ranks were asked for, or none: a number that works is chosen then"),
    _("its weights were smaller (quantization), layers waited in host memory, or a device were larger"),
    _("%(device)s were free of shares of the class %(isolation)s"),
    _("%(device)s were free and cut so: a platform admin can plan it under Layouts"),
    _("%(device)s were cut so: a platform admin can plan it under Layouts"),
    _("%(device)s were cut otherwise: a platform admin can plan it under Layouts"),
    _("another profile were asked for, or another GPU were cut so"),
    _("its MIG profile held %(size)s (%(kind)s holds %(total)s): %(acts)s"),
    _("its MIG profile held %(size)s (%(kind)s holds %(total)s)"),
    _("ask for no MIG profile"),
    _("ask for %(name)s"),
    _("a whole GPU were free, or less isolation were required"),
    _("node %(node)s had nvidia-cuda-mps-control, or less isolation were required"),
    _("a GPU were free that can be kept apart as required, or less were required"),
)
