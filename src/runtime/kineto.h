// Devices' events on the timeline of PyTorch's profiler.
#pragma once

namespace torchmdla {

// Add devices' events to every trace of torch.profiler from now on: a row for each stream. Further
// calls have no effect.
void add_events_to_profiler();

} // namespace torchmdla
