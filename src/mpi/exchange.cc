// SPDX-License-Identifier: Apache-2.0
#include "mpi/exchange.h"

#include <array>
#include <chrono>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "packet/packet.h"

namespace presum::mpi {
namespace {

using Steady = std::chrono::steady_clock;

constexpr int kRecords = 0;  // the recording rank
constexpr int kTag = 0;
constexpr std::chrono::milliseconds kPause{1};

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(std::string(call) + ": " + text.data());
}

}  // namespace

// Gives up on these transfers. MPI may still access their bytes, so they are never freed.
template <class Transfers>
void Exchange::abandon(Transfers& transfers) noexcept {
  if (!transfers.empty()) static_cast<void>(new (std::nothrow) Transfers(std::move(transfers)));
}

Exchange::~Exchange() {
  abandon(sending_);
  for (auto& queue : arriving_) abandon(queue);
}

std::string Exchange::announce(const std::string& own) {
  int rank = 0;
  int size = 0;
  check(MPI_Comm_dup(MPI_Comm(comm_), &comm_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
  if (rank == kRecords) arriving_.resize(static_cast<std::size_t>(size));
  std::array<char, kAnnouncementMax + 1> text{};
  own.copy(text.data(), kAnnouncementMax);
  check(MPI_Bcast(text.data(), text.size(), MPI_CHAR, kRecords, comm_), "MPI_Bcast");
  return text.data();
}

bool Exchange::done(Transfer& transfer) {
  int complete = 0;
  check(MPI_Test(&transfer.request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
  return complete != 0;
}

void Exchange::forget_delivered() {
  std::erase_if(sending_, [](Transfer& transfer) { return done(transfer); });
}

bool Exchange::send(Packet packet) {
  const std::size_t size_bytes = packet.bytes.size();
  if (size_bytes < packet::kHeaderBytes || size_bytes > packet::kBytesMax) return false;
  forget_delivered();
  if (sending_.size() >= kInFlight + (leaves_ ? 1 : 0)) return false;
  sending_.push_back({.packet = std::move(packet)});
  auto& [kept, request] = sending_.back();
  // Synchronous mode: completes once rank 0 has received it. Eager messages would accumulate there.
  check(MPI_Issend(kept.bytes.data(), static_cast<int>(size_bytes), MPI_BYTE, kRecords, kTag, comm_,
                   &request),
        "MPI_Issend");
  return true;
}

// Does not block: to make progress, a long message needs its sender's next MPI call.
void Exchange::start_receiving(MPI_Message message, const MPI_Status& status) {
  int count = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  Transfer& transfer = arriving_[static_cast<std::size_t>(status.MPI_SOURCE)].emplace_back();
  auto& bytes = transfer.packet.bytes;
  bytes.resize(static_cast<std::size_t>(count));
  check(MPI_Imrecv(bytes.data(), count, MPI_BYTE, &message, &transfer.request), "MPI_Imrecv");
}

void Exchange::match_what_came() {
  for (int found = 1; found != 0;) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, kTag, comm_, &found, &message, &status), "MPI_Improbe");
    if (found != 0) start_receiving(message, status);
  }
}

// Takes packets from the ranks in turn.
std::optional<Packet> Exchange::receive() {
  match_what_came();
  for (std::size_t turn = 0; turn < arriving_.size(); ++turn) {
    auto& queue = arriving_[next_];
    next_ = (next_ + 1) % arriving_.size();
    if (queue.empty() || !done(queue.front())) continue;
    Packet packet = std::move(queue.front().packet);
    queue.pop_front();
    return packet;
  }
  return std::nullopt;
}

void Exchange::flush(Seconds patience) {
  leaves_ = true;
  const auto begin = Steady::now();
  for (forget_delivered(); !sending_.empty() && Steady::now() - begin < patience;
       forget_delivered()) {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace presum::mpi
