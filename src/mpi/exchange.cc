// SPDX-License-Identifier: Apache-2.0
#include "presum/mpi.h"

#include <algorithm>
#include <array>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "packet/packet.h"

namespace presum::mpi {
namespace {

using Seconds = std::chrono::duration<double>;
using Steady = std::chrono::steady_clock;

constexpr int kAggregator = 0;
constexpr int kPacketTag = 0;
constexpr int kClosingTag = 1;
constexpr std::chrono::milliseconds kPause{1};

// A message that MPI reads or writes until `request` is complete.
struct Transfer {
  Packet packet;
  MPI_Request request = MPI_REQUEST_NULL;
};

// Transfers that nobody waits for any longer; MPI may still touch their bytes.
void abandon(std::vector<Transfer> transfers) {
  static auto& kept = *new std::vector<std::vector<Transfer>>;
  if (!transfers.empty()) kept.push_back(std::move(transfers));
}

bool mpi_runs() {
  int begun = 0;
  int over = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&over);
  return begun != 0 && over == 0;
}

// Repeats `step` until it returns true or the time is over. Returns its last answer.
template <class Step>
bool repeat_until(Steady::time_point deadline, Step step) {
  while (!step()) {
    if (Steady::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

struct Exchange::State {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  Announcement announced;
  bool active = false;
  std::uint64_t sent = 0;
  std::uint64_t dropped = 0;
  std::vector<Transfer> sending;

  // Of rank 0: what arrives, by rank and in order (its own needs no transfer); whom it looks at
  // next; how many others have closed.
  std::vector<std::deque<Transfer>> arriving;
  std::size_t next = 0;
  int closed = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    abandon(std::move(sending));
    for (auto& queue : arriving) {
      abandon({std::move_iterator(queue.begin()), std::move_iterator(queue.end())});
    }
  }

  bool aggregates() const { return rank == kAggregator; }

  // Switches off at the first error; nothing here is worth more than the training.
  bool ok(int code) {
    if (code != MPI_SUCCESS) active = false;
    return code == MPI_SUCCESS;
  }

  bool done(Transfer& transfer) {
    int complete = 0;
    return ok(MPI_Test(&transfer.request, &complete, MPI_STATUS_IGNORE)) && complete != 0;
  }

  bool announce(std::optional<Announcement> own) {
    const auto given = own.value_or(Announcement{});
    std::array<std::uint64_t, 3> said = {own.has_value(), given.run, given.segment};
    if (!ok(MPI_Bcast(said.data(), said.size(), MPI_UINT64_T, kAggregator, comm))) return false;
    active = said[0] != 0;
    announced = {.run = said[1], .segment = static_cast<std::uint32_t>(said[2])};
    return true;
  }

  bool open(MPI_Comm given, std::optional<Announcement> own) {
    if (!ok(MPI_Comm_dup(given, &comm)) || !ok(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)) ||
        !ok(MPI_Comm_rank(comm, &rank)) || !ok(MPI_Comm_size(comm, &size))) {
      return false;
    }
    if (aggregates()) arriving.resize(static_cast<std::size_t>(size));
    return announce(own);
  }

  void forget_delivered() {
    std::erase_if(sending, [&](Transfer& transfer) { return done(transfer); });
  }

  bool has_room() {
    if (aggregates()) return arriving[kAggregator].size() < kInFlight;
    forget_delivered();
    return sending.size() < kInFlight;
  }

  // Synchronous mode: complete once rank 0 took it. Eager messages would pile up there instead.
  bool start_sending(Packet packet, int tag) {
    sending.push_back({.packet = std::move(packet)});
    Transfer& transfer = sending.back();
    auto& bytes = transfer.packet.bytes;
    return ok(MPI_Issend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, kAggregator, tag,
                         comm, &transfer.request));
  }

  bool take(Packet packet) {
    const std::size_t size_bytes = packet.bytes.size();
    if (size_bytes < packet::kHeaderBytes || size_bytes > packet::kBytesMax) return false;
    if (!active || !has_room()) return false;
    packet.stamp(announced.run, announced.segment);
    if (!aggregates()) return start_sending(std::move(packet), kPacketTag);
    arriving[kAggregator].push_back({.packet = std::move(packet)});
    return true;
  }

  // Not a blocking receive: a long message needs its sender's next call of MPI to move.
  bool start_receiving(MPI_Message message, const MPI_Status& status) {
    int count = 0;
    if (!ok(MPI_Get_count(&status, MPI_BYTE, &count))) return false;
    Transfer transfer;
    transfer.packet.bytes.resize(static_cast<std::size_t>(count));
    if (!ok(MPI_Imrecv(transfer.packet.bytes.data(), count, MPI_BYTE, &message,
                       &transfer.request))) {
      return false;
    }
    if (status.MPI_TAG == kClosingTag) ++closed;
    arriving[static_cast<std::size_t>(status.MPI_SOURCE)].push_back(std::move(transfer));
    return true;
  }

  void match_what_came() {
    int found = 1;
    while (active && found != 0) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      if (!ok(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &message, &status))) return;
      if (found != 0 && !start_receiving(message, status)) return;
    }
  }

  // The oldest packet of a rank, if it is here as a whole.
  std::optional<Packet> first_of(std::deque<Transfer>& queue) {
    while (!queue.empty() && done(queue.front())) {
      Packet packet = std::move(queue.front().packet);
      queue.pop_front();
      if (!packet.bytes.empty()) return packet;  // else it says that its sender has closed
    }
    return std::nullopt;
  }

  // Ranks take turns.
  std::optional<Packet> receive() {
    match_what_came();
    for (std::size_t turn = 0; active && turn < arriving.size(); ++turn) {
      auto packet = first_of(arriving[next]);
      next = (next + 1) % arriving.size();
      if (packet) return packet;
    }
    return std::nullopt;
  }

  bool everything_arrived() const {
    const auto empty = [](const auto& queue) { return queue.empty(); };
    return closed == size - 1 && std::all_of(arriving.begin(), arriving.end(), empty);
  }

  bool receive_the_rest(Steady::time_point deadline, const std::function<void(const Packet&)>& to) {
    return repeat_until(deadline, [&] {
      while (auto packet = receive()) {
        if (to) to(*packet);
        if (Steady::now() >= deadline) break;
      }
      return everything_arrived() || !active;
    });
  }

  bool deliver_the_rest(Steady::time_point deadline) {
    if (!start_sending({}, kClosingTag)) return false;
    return repeat_until(deadline, [&] {
      forget_delivered();
      return sending.empty() || !active;
    });
  }
};

Exchange::Exchange(std::unique_ptr<State> state) : state_(std::move(state)) {}
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;
Exchange::~Exchange() = default;

Result<Exchange> Exchange::create(MPI_Comm comm, std::optional<Announcement> announced) {
  if (!mpi_runs()) {
    return fail(ErrorCode::kInvalidArgument, "MPI is not running: create it after MPI_Init");
  }
  if (comm == MPI_COMM_NULL) return fail(ErrorCode::kInvalidArgument, "the communicator is null");
  auto state = std::make_unique<State>();
  if (!state->open(comm, announced)) {
    return fail(ErrorCode::kIo, "MPI could not duplicate the communicator");
  }
  return Exchange(std::move(state));
}

bool Exchange::active() const { return state_->active; }
std::uint64_t Exchange::sent() const { return state_->sent; }
std::uint64_t Exchange::dropped() const { return state_->dropped; }

bool Exchange::send(Packet packet) {
  const bool taken = state_->take(std::move(packet));
  ++(taken ? state_->sent : state_->dropped);
  return taken;
}

std::optional<Packet> Exchange::receive() { return state_->receive(); }

bool Exchange::close(const std::function<void(const Packet&)>& take, Seconds patience) {
  if (!state_->active) return true;
  const auto deadline = Steady::now() + std::chrono::duration_cast<Steady::duration>(patience);
  const bool complete = state_->aggregates() ? state_->receive_the_rest(deadline, take)
                                             : state_->deliver_the_rest(deadline);
  const bool healthy = std::exchange(state_->active, false);
  return complete && healthy;
}

}  // namespace presum::mpi
