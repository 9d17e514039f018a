"""What is right: two NICs that move bytes in any order that reliable connections allow."""

import heapq
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np

from harness.simulators import fabric
from harness.simulators.fabric import Access, Flight, caller, schedules

RIGHTS = {"LOCAL_WRITE", "REMOTE_READ", "REMOTE_WRITE"}
STEPS = {("RESET", "INIT"), ("INIT", "RTR"), ("RTR", "RTS")}
OPS = ("SEND", "WRITE", "WRITE_IMM", "READ")
orders = schedules


class Fault(AssertionError):
    """A work request that a NIC ends with an error, by the name verbs has for it."""


@dataclass(frozen=True)
class Wc:
    op: str
    imm: int | None
    wr_id: int


@dataclass(frozen=True)
class Mr:
    lkey: int
    rkey: int
    name: str
    lo: int
    hi: int
    access: frozenset


@dataclass(eq=False, kw_only=True)
class Request(Flight):
    """A work request on its way: to the other side, then back as an acknowledgement."""

    qp: "Qp"
    wr: object
    what: str
    known: int  # what the sender knew
    carries: int  # what whoever is told by this knows


@dataclass(eq=False, kw_only=True)
class Acknowledgement(Flight):
    request: Request


@dataclass(eq=False, kw_only=True)
class Told(Flight):
    value: object
    carries: int


class Qp:
    def __init__(self, end, number):
        self._end, self.number = end, number
        self._state, self._peer, self._since = "RESET", None, None
        self._receives = deque()  # (number, since, what, lkey, lo, hi, wr_id)
        self._places = 0  # of the send queue that are taken
        self._sent, self._received = deque(), deque()  # (Wc, knows, places) that nobody took
        self._waiting = 0  # receives whose completion nobody took
        self._ways = self._backs = self._moved = self._reads = self._ended = 0  # numbers, as bits
        self._unsaid = 0  # requests ended since the last completion

    def __repr__(self):
        return f"QP {self.number} of {self._end}"

    def modify(self, state, peer=None):
        if (self._state, state) not in STEPS:
            raise ValueError(f"modify: {self} is in {self._state}, and cannot become {state!r}")
        if state == "RTR":
            if peer not in self._end._fabric.qps or isinstance(peer, bool):
                raise ValueError(f"modify: peer: expected a queue pair's number, found {peer!r}")
            self._peer = peer
            self._since = self._end._notes()
        self._state = state

    def post_recv(self, lkey=None, lo=0, hi=0, wr_id=0):
        end, here = self._end, caller()
        what = f"{end}, post_recv({lo}:{hi})"
        if self._state == "RESET":
            raise ValueError(f"{what}: {self} is in RESET")
        if self._waiting == end.depth:
            raise ValueError(f"{what}: the receive queue of {self} is full, {end.depth} places")
        number = end._fabric.number()
        if lo != hi:
            mr = end._own(what, lkey, lo, hi, "LOCAL_WRITE")
            access = Access(number, what, True, lo, hi, here)
            end._memory.judge(mr.name, access, end._knows)
        self._waiting += 1
        self._receives.append((number, end._notes(), what, lkey, lo, hi, wr_id))
        end._counts["receives"] += 1

    def post_send(self, wr):
        end, here = self._end, caller()
        net = end._fabric
        what = f"{end}, post_send({wr.op}, {wr.lo}:{wr.hi})"
        if wr.op not in OPS:
            raise ValueError(f"{what}: op: expected one of {', '.join(OPS)}, found {wr.op!r}")
        if self._state != "RTS":
            raise ValueError(f"{what}: {self} is in {self._state}, expected RTS")
        if self._places == end.depth:
            raise ValueError(f"{what}: the send queue of {self} is full, {end.depth} places")
        if wr.op == "READ" and wr.hi - wr.lo > end.max_read:
            raise ValueError(f"{what}: expected at most {end.max_read} elements")
        if wr.op != "SEND" and (wr.imm is None) == (wr.op == "WRITE_IMM"):
            raise ValueError(f"{what}: imm: {wr.op} with {wr.imm!r}")
        number, back = net.number(), net.number()
        ordered = self._moved | (self._reads if wr.fence else 0)
        if wr.lo != wr.hi:
            mr = end._own(what, wr.lkey, wr.lo, wr.hi, "LOCAL_WRITE" if wr.op == "READ" else None)
            access = Access(number, what, wr.op == "READ", wr.lo, wr.hi, here)
            end._memory.judge(mr.name, access, end._knows)
        if wr.op != "SEND":
            other, mr = net.keys.get(wr.rkey, (None, None))
            if other is not None:
                far = Access(
                    number, f"{what} at {wr.at} of {other}", wr.op != "READ",
                    wr.at, wr.at + wr.hi - wr.lo, here,
                )  # fmt: skip
                if 0 <= wr.at <= far.stop <= other.size(mr.name):
                    other._memory.judge(mr.name, far, end._knows | ordered)
        request = Request(
            number=number, to=net.qps[self._peer]._end, qp=self, wr=wr, what=what,
            # requests begin there in order; only a fence waits until a READ has ended
            after=self._ways & ~self._reads | (self._reads if wr.fence else 0),
            known=end._knows, carries=end._knows | ordered | 1 << number,
        )  # fmt: skip
        net.flying.append(request)
        net.flying.append(
            Acknowledgement(number=back, to=end, after=self._backs | 1 << number, request=request)
        )
        self._ways |= 1 << number
        self._backs |= 1 << back
        if wr.op == "READ":
            self._reads |= 1 << number
        else:
            self._moved |= 1 << number
        self._places += 1
        end._counts["requests"] += 1
        under_way = sum(isinstance(one, Request) and one.qp is self for one in net.flying)
        end._ahead = max(end._ahead, under_way)

    def next_sent(self):
        return ("sent", self._end, self)

    def next_received(self):
        return ("received", self._end, self)


class End(fabric.Agent):
    def __init__(self, net, rank, name, buffers, gpu, depth, max_read, blocks):
        super().__init__(net, rank, buffers)
        self._name, self._gpu, self._blocks = name, gpu, blocks
        self.depth, self.max_read = depth, max_read
        self._delivered, self._registered, self._live = [], [], {}
        self._counts, self._ahead = Counter(), 0
        self._told, self._heard = False, deque()

    def __repr__(self):
        return self._name

    # memory

    def size(self, name):
        return len(self._memory.buffers[name])

    def load(self, name, lo, hi):
        self._on_host("load", name)
        self._at_once("load", name, lo, hi, writes=False)
        self._touch(name, hi - lo)
        return self._memory.buffers[name][lo:hi].copy()

    def store(self, name, lo, values):
        self._on_host("store", name)
        values = np.asarray(values)
        self._at_once("store", name, lo, lo + len(values), writes=True)
        self._touch(name, len(values))
        self._memory.buffers[name][lo : lo + len(values)] = values

    def copy(self, dst, at, src, lo, hi):
        self._at_once("copy", src, lo, hi, writes=False)
        self._at_once("copy", dst, at, at + hi - lo, writes=True)
        self._touch(src, hi - lo)
        self._touch(dst, hi - lo)
        buffers = self._memory.buffers
        buffers[dst][at : at + hi - lo] = buffers[src][lo:hi]

    def _on_host(self, what, name):
        if name in self._gpu:
            raise ValueError(f"{self}, {what}({name!r}): this buffer is in GPU memory")

    def _touch(self, name, elements):
        if name not in self._gpu:
            self._counts["host_bytes"] += elements * self._memory.buffers[name].itemsize

    def block(self, index):
        return self._blocks[index].copy()

    def deliver(self, values):
        self._delivered.append(np.asarray(values).tolist())

    # keys

    def register(self, name, lo, hi, access=frozenset()):
        what = f"{self}, register({name!r}, {lo}:{hi})"
        if set(access) - RIGHTS:
            raise ValueError(f"{what}: access: expected of {sorted(RIGHTS)}, found {set(access)}")
        if "REMOTE_WRITE" in access and "LOCAL_WRITE" not in access:
            raise ValueError(f"{what}: access: REMOTE_WRITE needs LOCAL_WRITE")
        if not 0 <= lo <= hi <= self.size(name):
            raise ValueError(f"{what}: {name!r} has {self.size(name)} elements")
        mr = Mr(self._fabric.key(), self._fabric.key(), name, int(lo), int(hi), frozenset(access))
        self._live[mr.lkey] = mr
        self._fabric.keys[mr.rkey] = self, mr
        self._registered.append(mr)
        return mr

    def deregister(self, mr):
        if self._live.get(mr.lkey) is not mr:
            raise ValueError(f"{self}, deregister: {mr} is not registered")
        # whoever may still use these elements
        self._at_once("deregister", mr.name, mr.lo, mr.hi, writes=True)
        del self._live[mr.lkey]

    def _own(self, what, lkey, lo, hi, right):
        mr = self._live.get(lkey)
        if mr is None or not mr.lo <= lo <= hi <= mr.hi or (right and right not in mr.access):
            raise Fault(f"LOC_PROT_ERR: {what}: {_why(mr, lo, hi, right, 'lkey', lkey)}")
        return mr

    def _theirs(self, what, rkey, lo, hi, right):
        _, mr = self._fabric.keys.get(rkey, (None, None))
        alive = mr is not None and self._live.get(mr.lkey) is mr
        mr = mr if alive else None
        if mr is None or not mr.lo <= lo <= hi <= mr.hi or right not in mr.access:
            raise Fault(f"REM_ACCESS_ERR: {what}: {_why(mr, lo, hi, right, 'rkey', rkey)}")
        return mr

    def _notes(self):
        """The number of something that is done, for others to know of."""
        number = self._fabric.number()
        self._knows |= 1 << number
        return number

    # queue pairs

    def create_qp(self):
        net = self._fabric
        qp = Qp(self, net.key())
        net.qps[qp.number] = qp
        return qp

    def tell(self, value):
        if self._told:
            raise ValueError(f"{self}, tell: the socket is for one value")
        self._told = True
        net = self._fabric
        other = net.agents[1 - self.rank]
        net.flying.append(Told(number=net.number(), to=other, value=value, carries=self._knows))

    def hear(self):
        return ("hear", self)


def _why(mr, lo, hi, right, kind, key):
    if mr is None:
        return f"{kind}: nothing is registered under {key!r}"
    if not mr.lo <= lo <= hi <= mr.hi:
        return f"{lo}:{hi} is not within {mr.lo}:{mr.hi} of {mr.name!r}"
    return f"{mr.name!r} is registered without {right}"


class Net(fabric.Fabric):
    """Two hosts: what runs on each, and its buffers; those named in `gpu` are in GPU memory."""

    def __init__(self, works, buffers, gpu=(), depth=8, max_read=16, blocks=()):
        super().__init__()
        self.keys, self.qps, self._key = {}, {}, 100
        names = ("sender", "receiver")
        for rank, (work, own) in enumerate(zip(works, buffers, strict=True)):
            self.begin(work, End(self, rank, names[rank], own, gpu, depth, max_read, blocks))

    def key(self):
        self._key += 7
        return self._key

    def ready(self, end):
        match end._doing:
            case ("sent", _, qp):
                return bool(qp._sent)
            case ("received", _, qp):
                return bool(qp._received)
            case ("hear", _):
                return bool(end._heard)
        return True

    def resume(self, end):
        match end._doing:
            case ("sent", _, qp):
                wc, knows, places = qp._sent.popleft()
                qp._places -= places
                end._counts["completions"] += 1
                end._knows |= knows
                return wc
            case ("received", _, qp):
                wc, knows = qp._received.popleft()
                qp._waiting -= 1
                end._knows |= knows
                return wc
            case ("hear", _):
                value, knows = end._heard.popleft()
                end._knows |= knows
                return value
        return None

    def asked(self, end, wait):
        known = isinstance(wait, tuple) and len(wait) > 1 and wait[1] is end
        assert known, f"{end} yields {wait!r}, expected hear, next_sent or next_received of its own"

    def ended(self, end):
        left = [f"{mr.name!r} {mr.lo}:{mr.hi}" for mr in end._live.values()]
        assert not left, f"{end} has ended, and these are still registered: {', '.join(left)}"
        for name in end._memory.buffers:
            end._at_once("after the end", name, 0, end.size(name), writes=True)

    def waits(self, end):
        match end._doing:
            case ("hear", _):
                return "waits for what the other side tells"
            case (queue, _, qp):
                return f"waits for a completion: nothing is {queue} on {qp}"
        return f"{end._doing}"

    def land(self, flight):
        if isinstance(flight, Told):
            flight.to._heard.append((flight.value, flight.carries))
        elif isinstance(flight, Acknowledgement):
            self._complete(flight.request)
        else:
            self._execute(flight)

    def _execute(self, request):
        qp, wr, what, there = request.qp, request.wr, request.what, request.to
        own, peer = qp._end, self.qps[qp._peer]
        if peer._state not in ("RTR", "RTS") or peer._peer != qp.number:
            raise Fault(f"RETRY_EXC_ERR: {what}: {peer} is in {peer._state}, for {peer._peer}")
        if not request.known >> peer._since & 1:
            raise Fault(f"RETRY_EXC_ERR: {what}: {own} cannot know that {peer} is in RTR")
        length = wr.hi - wr.lo
        local = own._own(what, wr.lkey, wr.lo, wr.hi, None) if length else None
        if wr.op != "SEND" and length:
            right = "REMOTE_READ" if wr.op == "READ" else "REMOTE_WRITE"
            remote = there._theirs(what, wr.rkey, wr.at, wr.at + length, right)
            own._touch(local.name, length)
            there._touch(remote.name, length)
            near = own._memory.buffers[local.name][wr.lo : wr.hi]
            far = there._memory.buffers[remote.name][wr.at : wr.at + length]
            if wr.op == "READ":
                near[:] = far
            else:
                far[:] = near
        if wr.op in ("SEND", "WRITE_IMM"):
            if not peer._receives:
                raise Fault(f"RNR_RETRY_EXC_ERR: {what}: nothing is posted to receive at {peer}")
            number, since, posted, lkey, lo, hi, wr_id = peer._receives.popleft()
            if not request.known >> since & 1:
                raise Fault(f"RNR_RETRY_EXC_ERR: {what}: {own} cannot know of {posted}")
            if wr.op == "SEND" and length:
                if length > hi - lo:
                    raise Fault(f"REM_INV_REQ_ERR: {what}: longer than {posted}")
                remote = there._own(posted, lkey, lo, hi, "LOCAL_WRITE")
                own._touch(local.name, length)
                there._touch(remote.name, length)
                there._memory.buffers[remote.name][lo : lo + length] = (
                    own._memory.buffers[local.name][wr.lo : wr.hi]
                )  # fmt: skip
            knows = request.carries | 1 << number
            peer._received.append((Wc("RECV", wr.imm, wr_id), knows))

    def _complete(self, request):
        qp, wr = request.qp, request.wr
        qp._unsaid += 1
        qp._ended |= 1 << request.number
        if wr.signaled:
            qp._sent.append((Wc(wr.op, None, wr.wr_id), qp._ended, qp._unsaid))
            qp._unsaid = 0


def chunked(nbytes, chunk, *rates):
    """Chunks through stages that take one at a time, event by event; the end of the last."""
    sizes = [min(chunk, nbytes - at) for at in range(0, nbytes, chunk)]
    waiting = [deque(range(len(sizes))), *(deque() for _ in rates[1:])]
    busy, events, now = [None] * len(rates), [], 0.0
    while True:
        for stage, queue in enumerate(waiting):
            if queue and busy[stage] is None:
                busy[stage] = queue.popleft()
                heapq.heappush(events, (now + sizes[busy[stage]] / rates[stage], stage))
        if not events:
            return now
        now, stage = heapq.heappop(events)
        if stage + 1 < len(rates):
            waiting[stage + 1].append(busy[stage])
        busy[stage] = None
